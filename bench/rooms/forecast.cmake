add_executable(forecast forecast.cpp)
target_link_libraries(forecast PRIVATE snug_measure snug_exec CLI11::CLI11)
