add_executable(tokenize tokenize.cpp)
target_link_libraries(tokenize PRIVATE snug_format CLI11::CLI11)
