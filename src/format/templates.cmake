set(TEMPLATES_SOURCES chat_template.cpp prompt_format.cpp prompt_files.cpp)
