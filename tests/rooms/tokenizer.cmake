snug_test(tokenizer_test ROOMS format)

if(SNUG_FUZZ)
  add_executable(tokenizer_fuzz fuzz/tokenizer_fuzz.cpp)
  target_link_libraries(tokenizer_fuzz PRIVATE snug_format)
  target_compile_options(tokenizer_fuzz PRIVATE -fsanitize=fuzzer)
  target_link_options(tokenizer_fuzz PRIVATE -fsanitize=fuzzer)
endif()
