set(KERNELS_SOURCES backend.cpp facts.cpp operands.cpp norm.cpp pointwise.cpp cast.cpp random.cpp dropout.cpp rope.cpp embed.cpp
    loss.cpp reduce.cpp adamw.cpp)
# A square root that would set errno is a call; without, it is one instruction for a whole vector. No result changes.
set_source_files_properties(adamw.cpp PROPERTIES COMPILE_OPTIONS -fno-math-errno)
