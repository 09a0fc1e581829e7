set(TOKENIZER_SOURCES unicode.cpp pretokenizer.cpp tokenizer_bpe.cpp tokenizer_added.cpp tokenizer.cpp
    tokenizer_load.cpp)
