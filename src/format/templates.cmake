set(TEMPLATES_SOURCES chat_template.cpp chat_probes.cpp chat_spans.cpp chat_values.cpp modelfile.cpp jinja_json.cpp prompt_format.cpp prompt_files.cpp jinja.cpp jinja_builtins.cpp jinja_eval.cpp
    jinja_eval_expr.cpp jinja_expressions.cpp jinja_format.cpp jinja_lexer.cpp jinja_methods.cpp jinja_operators.cpp
    jinja_parser.cpp jinja_print.cpp jinja_scope.cpp jinja_sequence_filters.cpp jinja_text.cpp jinja_text_filters.cpp
    jinja_value.cpp)
