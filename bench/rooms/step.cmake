add_executable(step step.cpp)
target_link_libraries(step PRIVATE snug_cli)
