snug_test(tokenizer_test ROOMS format)
snug_test(tokenizer_kinds_test ROOMS format)
snug_test(split_regex_test ROOMS format)
snug_test(sentencepiece_test ROOMS format)
