// How many bytes of weights an engine reads in a step, for the roof of `tandem bench engine`.
// Thread safety: a pure function.
#pragma once

#include "absl/strings/string_view.h"
#include "common/model/checkpoint.h"

namespace tandem::engine {

struct WeightBytes {
  double layers = 0;           // of the matrices of all layers, which each step reads
  double output = 0;           // of the output matrix
  bool int8_products = false;  // products take activations rounded to int8
};

// Of the engine with that numerics id. One whose weights are "stored-..." keeps four bits where the
// checkpoint has them: what a matrix takes then depends on the tensors that it is made of.
WeightBytes WeightBytesOf(const model::Checkpoint& checkpoint, absl::string_view numerics_id);

}  // namespace tandem::engine
