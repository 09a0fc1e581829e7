snug_test(parity_test ROOMS train)
target_include_directories(parity_test PRIVATE ${PROJECT_SOURCE_DIR})
