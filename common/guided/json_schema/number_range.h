// Bounds on numbers, exact in decimal, and the automaton of the numerals that satisfy them.
// Thread safety: plain values and pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
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
// Errors: kInvalidArgument when the number is too large or too small to write without an exponent.
absl::StatusOr<Decimal> ToDecimal(const Json& number);
// The same of a number of any size: 64 bits or a double.
Decimal AnyDecimal(const Json& number);
// `text`: as JSON writes numbers.
absl::StatusOr<Decimal> ParseDecimal(absl::string_view text);
// -1, 0 or 1.
int Compare(const Decimal& a, const Decimal& b);

struct NumberBound {
  Decimal value;
  bool is_minimum = false;
  bool exclusive = false;
  bool Admits(const Decimal& number) const;
};

struct NumberRange {
  std::vector<NumberBound> bounds;  // a number must satisfy all of them
  std::vector<int64_t> multiples;   // a number must be a multiple of all of them

  bool Unbounded() const { return bounds.empty() && multiples.empty(); }
  bool Admits(const Decimal& number) const;
  void Narrow(const NumberRange& other);
};

// The automaton of the numerals in `range`, written without an exponent. It accepts integers only
// when `integers_only` holds or `range` has multiples. Otherwise a reader may keep numbers as
// doubles, so under an exclusive bound it accepts no numeral that the bound's double is nearest to.
// Errors: kInvalidArgument when it exceeds the budget or the bounds of char_dfa.h.
absl::StatusOr<CharDfa> NumberDfa(const NumberRange& range, bool integers_only,
                                  CompileBudget& budget);

}  // namespace tandem::guided::json_schema
