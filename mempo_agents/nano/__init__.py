"""A language model of about a million parameters that learns the compact world on two cores: tokenizer, model, lessons.

tokenizer.py   one token a word, built from the world's vocabulary and the environment's own words
model.py       a standard Llama, width 128, 4 layers
lessons.py     what it is taught, from reading to whole episodes
course.py      the training run with its curve
shipped.py     the trained models that come with the package
"""
