add_executable(overlap overlap.cpp)
target_link_libraries(overlap PRIVATE snug_train CLI11::CLI11)
