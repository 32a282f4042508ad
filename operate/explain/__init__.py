"""What became of a record, an entity or a key? The answer of `show`, and of the console's box.

stored   ── what Redis holds, and which check of the API refuses it
records  ── what Kafka holds of it, and what became of each record
explainer ─ what a text asks for, and both together
words    ── the answer in words: nothing before it has any, and nothing after it makes others
"""
