// A node is one step of a layer: it holds how the step is computed forward, and its gradient rule.
#pragma once

#include <span>
#include <vector>

#include "program/emitter.h"

namespace snug {

class Builder;

// Names a forward value of a pass by its number.
struct Value {
  int32_t id = -1;
  bool operator==(const Value&) const = default;
};

// Names columns [begin, end) of a value.
struct View {
  Value value;
  int64_t begin = 0, end = 0;
};

class Node {
 public:
  virtual ~Node() = default;

  // Emits the ops that write the outputs: in the forward, and in the backward again where they were not kept.
  virtual void compute(Builder& b, std::span<const Operand> outputs) = 0;
  // Emits the node's forward, once; a node that is part of another's composite op leaves it to that node.
  virtual void forward(Builder& b);
  // Is the gradient rule: emits the gradients of the inputs that want one, and of the node's parameters. It is called
  // only where the first output has a gradient, which is complete by then.
  virtual void backward(Builder&) {}
  // Returns whether the node's own parameters are trained, so that its output wants a gradient whatever its inputs do.
  virtual bool trains(const Builder&) const { return false; }
  // Returns whether backward() gives gradients at all. The input of a linear's adapter is a node of its own without a
  // rule, as the linear gives its gradient.
  virtual bool differentiable() const { return true; }
  // Returns whether backward() may restore the first output in the bytes of its gradient (Builder::set_current).
  // Whoever reads both waits for that.
  virtual bool restores() const { return false; }

  std::vector<Value> inputs, outputs;
};

}  // namespace snug
