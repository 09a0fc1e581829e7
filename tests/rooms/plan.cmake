snug_test(machine_test ROOMS plan)
snug_test(memory_doc_test ROOMS plan)
target_compile_definitions(memory_doc_test PRIVATE SNUG_DOCS="${PROJECT_SOURCE_DIR}/docs")
snug_test(balance_test ROOMS plan backend)
