snug_test(api_test LIBRARY ROOMS api)
target_link_libraries(api_test PRIVATE nlohmann_json::nlohmann_json)
target_compile_definitions(api_test PRIVATE SNUG_BINARY="$<TARGET_FILE:snug>")
add_dependencies(api_test snug)
