snug_test(chat_template_test ROOMS format)
snug_test(data_test ROOMS data)
snug_test(shapes_test ROOMS data)
snug_test(packing_test SOURCES count_allocations.cpp ROOMS data)
