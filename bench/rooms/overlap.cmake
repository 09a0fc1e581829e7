add_executable(overlap overlap.cpp)
target_link_libraries(overlap PRIVATE snug_plan snug_exec snug_backend_cpu CLI11::CLI11)
