"""The engine actor: scheduler, KV block pool and step loop of one model replica."""
