snug_test(cli_test)
target_link_libraries(cli_test PRIVATE nlohmann_json::nlohmann_json)
target_compile_definitions(cli_test PRIVATE SNUG_BINARY="$<TARGET_FILE:snug>")
add_dependencies(cli_test snug)
