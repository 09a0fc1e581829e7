snug_test(tokenizer_test ROOMS format)

