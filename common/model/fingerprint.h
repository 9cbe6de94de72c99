// The identity of a checkpoint: nodes and routers compare it to make sure that they serve the same
// model, and every block hash depends on it. Thread safety: pure functions.
// Invariant: all versions of Tandem compute the same fingerprint of a checkpoint, because clusters
// upgrade node by node.
#pragma once

#include <string>
#include <vector>

#include "common/model/model_config.h"
#include "common/model/stored_tensor.h"

namespace tandem::model {

// 16 hex digits over the configuration, the tensors' names, types and shapes, and their contents:
// all bytes of a small checkpoint, a fixed sample of each tensor of a large one, so that a model of
// any size starts fast. `tensors`: in the order of ExpectedTensors (tensor_table.h).
std::string Fingerprint(const ModelConfig& config, const std::vector<StoredTensor>& tensors);

}  // namespace tandem::model
