add_executable(dataset dataset.cpp)
target_link_libraries(dataset PRIVATE snug_cli CLI11::CLI11)
