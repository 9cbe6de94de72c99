// Bounds on numbers, exact in decimal, and the automaton of the numerals within them.
// Thread safety: values and pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/guided/char_dfa.h"
#include "common/guided/json_schema/document.h"

namespace tandem::guided::json_schema {

inline constexpr int64_t kMultipleOfMax = 5000;

// A decimal number: sign, digits before the point (no leading zeros, "0" alone), digits after it
// (no trailing zeros).
struct Decimal {
  bool negative = false;
  std::string whole = "0", fraction;

  bool IsZero() const { return whole == "0" && fraction.empty(); }
};
// kInvalidArgument for numbers too large or too small to be written out.
absl::StatusOr<Decimal> ToDecimal(const Json& number);
// -1, 0 or 1.
int Compare(const Decimal& a, const Decimal& b);

struct NumberBound {
  Decimal value;
  bool is_minimum = false;
  bool exclusive = false;
  bool Admits(const Decimal& number) const;
};

struct NumberRange {
  std::vector<NumberBound> bounds;  // all hold
  std::vector<int64_t> multiples;   // integers; all divide

  bool Unbounded() const { return bounds.empty() && multiples.empty(); }
  bool Admits(const Decimal& number) const;
  void Narrow(const NumberRange& other);
};

// Numerals without an exponent. Numbers that must be a multiple are integers.
absl::StatusOr<CharDfa> NumberDfa(const NumberRange& range, bool integers_only);

}  // namespace tandem::guided::json_schema
