// Random valid values for the rows of request::kParameters: one Sample overload for each type that
// a parameter can have. Thread safety: as that of the generator. Owner: a test.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>
#include <random>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/request/parameter_table.h"

namespace tandem::testing {

using Generator = std::mt19937_64;

// Token ids are below this one.
inline constexpr int32_t kSampleVocabulary = 200;

// Eighths, which every text of a number keeps.
inline double SampleNumber(const request::Range& range, Generator& random) {
  const double low = std::max(range.low, -100.0), high = std::min(range.high, 100.0);
  const auto steps = static_cast<uint64_t>((high - low) * 8);
  return low + static_cast<double>(1 + random() % steps) / 8;
}

inline void Sample(const request::Description& about, Generator& random, double* value) {
  *value = SampleNumber(about.range, random);
}
inline void Sample(const request::Description& about, Generator& random, int32_t* value) {
  *value = static_cast<int32_t>(std::ceil(SampleNumber(about.range, random)));
}
inline void Sample(const request::Description& about, Generator& random,
                   std::optional<int32_t>* value) {
  int32_t number = 0;
  Sample(about, random, &number);
  *value = number;
}
inline void Sample(const request::Description&, Generator& random, uint64_t* value) {
  *value = random() >> 1;  // flags and most JSON writers have 63 bits
}
inline void Sample(const request::Description&, Generator&, bool* value) { *value = true; }
inline void Sample(const request::Description&, Generator& random, std::vector<TokenId>* value) {
  const auto first = static_cast<TokenId>(random() % (kSampleVocabulary - 2));
  *value = {first, first + 1};
}
inline void Sample(const request::Description& about, Generator& random,
                   std::vector<std::pair<TokenId, float>>* value) {
  const auto token = static_cast<TokenId>(random() % (kSampleVocabulary - 1));
  *value = {{token, static_cast<float>(SampleNumber(about.range, random))},
            {token + 1, static_cast<float>(SampleNumber(about.range, random))}};
}
inline void Sample(const request::Description&, Generator& random,
                   std::vector<std::vector<TokenId>>* value) {
  const auto token = static_cast<TokenId>(random() % kSampleVocabulary);
  *value = {{token}, {token, 0, token}};
}
inline void Sample(const request::Description&, Generator& random,
                   std::vector<std::string>* value) {
  *value = {absl::StrCat("stop", random() % 100), "b"};
}

// Values as JSON writes them.
inline std::string JsonOf(double value) { return absl::StrCat(value); }
inline std::string JsonOf(int32_t value) { return absl::StrCat(value); }
inline std::string JsonOf(const std::optional<int32_t>& value) { return absl::StrCat(*value); }
inline std::string JsonOf(uint64_t value) { return absl::StrCat(value); }
inline std::string JsonOf(bool value) { return value ? "true" : "false"; }
inline std::string JsonOf(const std::vector<TokenId>& value) {
  return absl::StrCat("[", absl::StrJoin(value, ","), "]");
}
inline std::string JsonOf(const std::vector<std::pair<TokenId, float>>& value) {
  std::vector<std::string> members;
  for (const auto& [token, bias] : value) {
    members.push_back(absl::StrCat("\"", token, "\":", bias));
  }
  return absl::StrCat("{", absl::StrJoin(members, ","), "}");
}
inline std::string JsonOf(const std::vector<std::string>& value) {
  return absl::StrCat("[\"", absl::StrJoin(value, "\",\""), "\"]");
}
// Bad words are texts in JSON.
inline std::string JsonOf(const std::vector<std::vector<TokenId>>&) { return "[\"bad word\"]"; }

// The part that holds the member of `row`.
template <typename Row>
const auto& PartOf(const Row&, const request::SamplingParams& sampling,
                   const request::StopParams& stop) {
  if constexpr (std::is_same_v<typename Row::params_type, request::SamplingParams>) {
    return sampling;
  } else {
    return stop;
  }
}

}  // namespace tandem::testing
