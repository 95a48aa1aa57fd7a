"""gpt-oss's own format, by openai-harmony: it renders prompts, and reads the headers of answers.

Imported only where the served model speaks Harmony. Without the library's vocabulary, the checkpoint's chat template
and app/dialects/harmony.py do the same from text.
"""
