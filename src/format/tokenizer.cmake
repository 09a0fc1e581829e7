set(TOKENIZER_SOURCES unicode.cpp char_set.cpp split_regex.cpp split_regex_parse.cpp word_scanner.cpp pretokenizer.cpp
    normalizer.cpp byte_letters.cpp token_decoder.cpp merge_table.cpp tokenizer_bpe.cpp tokenizer_bpe_load.cpp
    tokenizer_added.cpp tokenizer.cpp tokenizer_load.cpp new_tokens.cpp
    protobuf.cpp sentencepiece.cpp tokenizer_sentencepiece.cpp)
