"""The KV connector: blocks of keys and values that come from other engines or from the disk, or go there."""
