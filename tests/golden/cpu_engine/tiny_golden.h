// Reads the goldens of the tiny checkpoints, for the tests of every engine. Thread safety: pure
// functions.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "common/base/ids.h"
#include "nlohmann/json.hpp"
#include "tests/testing/models.h"

namespace tandem::engine {

// What a tiny checkpoint's reference gave for a text at some of its positions.
struct Golden {
  std::vector<TokenId> tokens;
  std::vector<int64_t> positions;
  std::vector<float> logits;  // [positions][vocab]
};

// From golden.json and logits.f32 of a folder; empty where they cannot be read.
inline Golden ReadGolden(const std::string& folder) {
  const auto json =
      nlohmann::json::parse(testing::ReadFileOrEmpty(folder + "/golden.json"), nullptr, false);
  Golden golden;
  if (!json.is_object()) return golden;
  golden.tokens = json["tokens"].get<std::vector<TokenId>>();
  golden.positions = json["positions"].get<std::vector<int64_t>>();
  const std::string bytes = testing::ReadFileOrEmpty(folder + "/logits.f32");
  golden.logits.resize(bytes.size() / sizeof(float));
  std::memcpy(golden.logits.data(), bytes.data(), golden.logits.size() * sizeof(float));
  return golden;
}

// log softmax of `size` logits, in double.
inline std::vector<double> LogSoftmax(const float* logits, size_t size) {
  const double most = *std::max_element(logits, logits + size);
  double sum = 0;
  for (size_t i = 0; i < size; ++i) sum += std::exp(logits[i] - most);
  std::vector<double> logprobs;
  for (size_t i = 0; i < size; ++i) logprobs.push_back(logits[i] - most - std::log(sum));
  return logprobs;
}

}  // namespace tandem::engine
