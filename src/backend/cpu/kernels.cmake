set(KERNELS_SOURCES backend.cpp facts.cpp operands.cpp norm.cpp pointwise.cpp cast.cpp random.cpp rope.cpp embed.cpp
    loss.cpp reduce.cpp adamw.cpp)
