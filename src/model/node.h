// One step of a layer: what it computes forward, and its gradient rule.
#pragma once

#include <span>
#include <vector>

#include "program/emitter.h"

namespace snug {

class Builder;

// A forward value of a pass, by number.
struct Value {
  int32_t id = -1;
  bool operator==(const Value&) const = default;
};

// Some of a value's columns.
struct View {
  Value value;
  int64_t begin = 0, end = 0;
};

class Node {
 public:
  virtual ~Node() = default;

  // Emits the ops that write the outputs: in the forward, and in the backward again where they were not kept.
  virtual void compute(Builder& b, std::span<const Operand> outputs) = 0;
  // Emits what the forward does, once; a node that is part of another's composite op leaves it to that one.
  virtual void forward(Builder& b);
  // The gradient rule: emits the gradients of the inputs that want one, and of the node's parameters. That of the first
  // output is complete. Called only where there is one.
  virtual void backward(Builder&) {}
  // Whether parameters of its own are trained, so that its output wants a gradient whatever its inputs do.
  virtual bool trains(const Builder&) const { return false; }
  // Whether backward() gives gradients at all. What a linear's adapter reads is a node, whose gradient the linear
  // gives.
  virtual bool differentiable() const { return true; }
  // Whether backward() may write the first output again into the bytes of its gradient (Builder::set_current): what
  // reads both waits for it.
  virtual bool restores() const { return false; }

  std::vector<Value> inputs, outputs;
};

}  // namespace snug
