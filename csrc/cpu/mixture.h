// The routed experts and the shared one of a mixture, in fp32: only experts that somebody chose are read.
//
// A token's result depends on itself alone: products have one order of summation (product.h), and its experts are
// added in ascending id.
#pragma once

#include <cstddef>
#include <cstdint>

#include "product.h"

namespace tamis {

struct Mixture {
  const float* x;               // [tokens, hidden]
  const std::int64_t* experts;  // [tokens, chosen], distinct in a row
  const float* weights;         // [tokens, chosen]
  const float* gate_up;         // [experts, 2 * inner, hidden], gate first
  const float* down;            // [experts, hidden, inner]
  const float* shared_gate_up;  // [2 * shared, hidden]
  const float* shared_down;     // [hidden, shared]
  float* out;                   // [tokens, hidden]
  std::size_t tokens, chosen, num_experts, hidden, inner, shared;
  float scale, alpha, limit;
};

// out = scale * sum of weight * down(SwiGLU-OAI(gate_up(x))) over a token's experts + the shared expert of x.
// Throws std::out_of_range when an expert's id is none.
void mixture(const Mixture& m, Product product, int threads);

}  // namespace tamis
