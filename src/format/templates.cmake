set(TEMPLATES_SOURCES chat_template.cpp)
