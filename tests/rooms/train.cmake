snug_test(parity_test ROOMS train)
snug_test(strategy_test ROOMS train)
snug_test(exact_test ROOMS train)
snug_test(lower_test ROOMS train)
snug_test(checkpoint_test ROOMS train)
snug_test(smollm2_test ROOMS cli)
target_compile_definitions(smollm2_test PRIVATE
  SNUG_DEMO_GGUF="${PROJECT_SOURCE_DIR}/build/demo/SmolLM2-135M-Instruct.Q4_1.gguf")
set_tests_properties(smollm2_test PROPERTIES LABELS slow)
