set(FILES_SOURCES json.cpp safetensors.cpp bnb.cpp hf_config.cpp peft.cpp gguf.cpp gguf_types.cpp gguf_import.cpp
    gguf_tokenizer.cpp)
