add_executable(cpu_step cpu_step.cpp)
target_link_libraries(cpu_step PRIVATE snug_train CLI11::CLI11)
