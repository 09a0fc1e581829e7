add_executable(templates templates.cpp)
target_link_libraries(templates PRIVATE snug_format CLI11::CLI11)
