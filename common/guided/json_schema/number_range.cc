#include "common/guided/json_schema/number_range.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <map>
#include <tuple>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/base/shown_text.h"
#include "common/base/status_macros.h"

namespace tandem::guided::json_schema {
namespace {

constexpr int kExponentMax = 40;
constexpr int kDoubleExponentMax = 330;  // of any double's shortest numeral

int Sign(int value) { return (value > 0) - (value < 0); }

int CompareMagnitudes(const Decimal& a, const Decimal& b) {
  if (a.whole.size() != b.whole.size()) return a.whole.size() < b.whole.size() ? -1 : 1;
  if (const int whole = a.whole.compare(b.whole); whole != 0) return Sign(whole);
  return Sign(a.fraction.compare(b.fraction));
}

// The automaton of the numerals that a bound admits. It reads the sign, the digits, the point and
// the fraction's digits; after each it knows how the magnitude so far compares with the bound's.
class BoundAutomaton {
 public:
  explicit BoundAutomaton(const NumberBound& bound) : bound_(bound), value_(bound.value) {}

  CharDfa Build() {
    IdOf(State{});
    for (size_t i = 0; i < order_.size(); ++i) {
      const State state = order_[i];
      dfa_.states[i].accept = Accepts(state);
      if (state.part == kStart) AddEdge(i, '-', Negative());
      if (state.part == kWhole) AddEdge(i, '.', Point(state));
      for (char digit = '0'; digit <= '9'; ++digit) AddEdge(i, digit, Digit(state, digit));
    }
    return std::move(dfa_);
  }

 private:
  enum Part : uint8_t { kStart, kSigned, kWhole, kPoint, kFraction };
  struct State {
    Part part = kStart;
    bool negative = false;
    int read = 0;   // number of digits of this part, as far as it matters
    int order = 0;  // of the digits read, compared with the bound's: -1, 0 or 1
    auto Key() const { return std::tuple(part, negative, read, order); }
  };

  State Negative() const { return {.part = kSigned, .negative = true}; }
  State Point(const State& state) const {
    return {.part = kPoint, .negative = state.negative, .order = WholeOrder(state)};
  }
  int WholeOrder(const State& state) const {
    const int length = static_cast<int>(value_.whole.size());
    return state.read != length ? (state.read < length ? -1 : 1) : state.order;
  }

  State Digit(State state, char digit) const {
    if (state.part == kStart || state.part == kSigned) state.part = kWhole;
    if (state.part == kPoint) state.part = kFraction;
    const std::string& digits = state.part == kWhole ? value_.whole : value_.fraction;
    const auto at = static_cast<size_t>(state.read);
    if (state.part == kWhole) {
      if (at < digits.size() && state.order == 0) state.order = Sign(digit - digits[at]);
      state.read = std::min(state.read + 1, static_cast<int>(digits.size()) + 1);
    } else if (state.order == 0) {
      state.order = Sign(digit - (at < digits.size() ? digits[at] : '0'));
      state.read = std::min(state.read + 1, static_cast<int>(digits.size()));
      if (state.order != 0) state.read = 0;
    }
    return state;
  }

  bool Accepts(const State& state) const {
    if (state.part != kWhole && state.part != kFraction) return false;
    int order = state.part == kWhole ? WholeOrder(state) : state.order;
    // Digits that only the bound has after the point make the bound larger.
    const size_t read = state.part == kFraction ? static_cast<size_t>(state.read) : 0;
    if (order == 0 && read < value_.fraction.size()) order = -1;
    if (state.negative != value_.negative && !(value_.IsZero() && order == 0)) {
      order = state.negative ? -1 : 1;
    } else if (state.negative) {
      order = -order;
    }
    if (order == 0) return !bound_.exclusive;
    return bound_.is_minimum ? order > 0 : order < 0;
  }

  int32_t IdOf(const State& state) {
    const auto [it, fresh] = ids_.emplace(state.Key(), static_cast<int32_t>(order_.size()));
    if (fresh) {
      order_.push_back(state);
      dfa_.states.emplace_back();
    }
    return it->second;
  }

  void AddEdge(size_t from, char symbol, const State& to) {
    const int32_t target = IdOf(to);
    const auto c = static_cast<uint32_t>(symbol);
    dfa_.states[from].edges.push_back({CharSet::Of(c, c), target});
  }

  const NumberBound& bound_;
  const Decimal& value_;
  CharDfa dfa_;
  std::vector<State> order_;
  std::map<std::tuple<Part, bool, int, int>, int32_t> ids_;
};

// Integers that `divisor` divides.
CharDfa MultipleDfa(int64_t divisor) {
  CharDfa dfa;
  dfa.states.resize(static_cast<size_t>(divisor) + 2);  // start, signed, then remainders
  for (size_t i = 0; i < dfa.states.size(); ++i) {
    const int64_t remainder = i < 2 ? 0 : static_cast<int64_t>(i) - 2;
    dfa.states[i].accept = i == 2;
    if (i == 0) dfa.states[i].edges.push_back({CharSet::Of('-', '-'), 1});
    for (int64_t digit = 0; digit < 10; ++digit) {
      const auto c = static_cast<uint32_t>('0' + digit);
      dfa.states[i].edges.push_back(
          {CharSet::Of(c, c), static_cast<int32_t>((remainder * 10 + digit) % divisor + 2)});
    }
  }
  return dfa;
}

// `exponent_max`: of the number's size, and of the fraction that it may be.
absl::StatusOr<Decimal> ParseDecimalWithin(absl::string_view number, int exponent_max) {
  Decimal decimal;
  absl::string_view text = number;
  decimal.negative = absl::ConsumePrefix(&text, "-");
  int exponent = 0;
  bool fits = true;
  if (const size_t e = text.find_first_of("eE"); e != text.npos) {
    fits = absl::SimpleAtoi(absl::StripPrefix(text.substr(e + 1), "+"), &exponent) &&
           std::abs(exponent) <= exponent_max;
    text = text.substr(0, e);
  }
  const size_t point = std::min(text.find('.'), text.size());
  if (!fits || point > static_cast<size_t>(exponent_max) + 1) {
    return absl::InvalidArgumentError(absl::StrCat(Shown(number), ": expected a number between 1e-",
                                                   exponent_max, " and 1e", exponent_max));
  }
  std::string digits(text);
  if (point < text.size()) digits.erase(point, 1);
  int64_t whole_digits = static_cast<int64_t>(point) + exponent;
  if (whole_digits <= 0) {
    digits.insert(0, static_cast<size_t>(1 - whole_digits), '0');
    whole_digits = 1;
  }
  while (static_cast<int64_t>(digits.size()) < whole_digits) digits.push_back('0');
  decimal.whole = digits.substr(0, static_cast<size_t>(whole_digits));
  decimal.fraction = digits.substr(static_cast<size_t>(whole_digits));
  decimal.whole.erase(0, std::min(decimal.whole.find_first_not_of('0'), decimal.whole.size() - 1));
  decimal.fraction.erase(decimal.fraction.find_last_not_of('0') + 1);
  if (decimal.IsZero()) decimal.negative = false;
  return decimal;
}

// The bound for numbers that are read as doubles: every numeral up to that of a double is read as
// at most that double, so an exclusive bound becomes the inclusive one of the double beside it.
// Where that cannot be written, beside zero, no numeral of few digits is read as the bound.
NumberBound ForDoubles(const NumberBound& bound) {
  if (!bound.exclusive) return bound;
  double number = 0;
  const std::string text = absl::StrCat(bound.value.negative ? "-" : "", bound.value.whole, ".",
                                        bound.value.fraction, "0");
  if (!absl::SimpleAtod(text, &number)) return bound;
  const double far = std::numeric_limits<double>::infinity();
  const Json beside = std::nextafter(number, bound.is_minimum ? far : -far);
  const auto value = ParseDecimalWithin(beside.dump(), kExponentMax + 1);
  if (!value.ok()) return bound;
  return {.value = *value, .is_minimum = bound.is_minimum};
}

}  // namespace

absl::StatusOr<Decimal> ToDecimal(const Json& number) { return ParseDecimal(number.dump()); }

Decimal AnyDecimal(const Json& number) {
  return ParseDecimalWithin(number.dump(), kDoubleExponentMax).value();
}

absl::StatusOr<Decimal> ParseDecimal(absl::string_view text) {
  return ParseDecimalWithin(text, kExponentMax);
}

int Compare(const Decimal& a, const Decimal& b) {
  if (a.negative != b.negative) return a.negative ? -1 : 1;
  return a.negative ? -CompareMagnitudes(a, b) : CompareMagnitudes(a, b);
}

bool NumberBound::Admits(const Decimal& number) const {
  const int order = Compare(number, value);
  if (order == 0) return !exclusive;
  return is_minimum ? order > 0 : order < 0;
}

bool NumberRange::Admits(const Decimal& number) const {
  for (const NumberBound& bound : bounds) {
    if (!bound.Admits(number)) return false;
  }
  for (const int64_t divisor : multiples) {
    if (!number.fraction.empty()) return false;
    int64_t remainder = 0;
    for (const char digit : number.whole) remainder = (remainder * 10 + (digit - '0')) % divisor;
    if (remainder != 0) return false;
  }
  return true;
}

void NumberRange::Narrow(const NumberRange& other) {
  bounds.insert(bounds.end(), other.bounds.begin(), other.bounds.end());
  multiples.insert(multiples.end(), other.multiples.begin(), other.multiples.end());
}

absl::StatusOr<CharDfa> NumberDfa(const NumberRange& range, bool integers_only,
                                  CompileBudget& budget) {
  const bool whole = integers_only || !range.multiples.empty();
  // Allows the digits that readers keep (a 64-bit integer 18, a double 17) and those that the
  // bounds need.
  size_t whole_digits = whole ? 18 : 17, fraction_digits = 17;
  std::vector<NumberBound> bounds;
  for (const NumberBound& exact : range.bounds) {
    const NumberBound& bound = bounds.emplace_back(whole ? exact : ForDoubles(exact));
    whole_digits = std::max(whole_digits, bound.value.whole.size());
    fraction_digits = std::max(fraction_digits, bound.value.fraction.size() + 1);
  }
  const std::string numerals = whole ? absl::StrCat("0|-?[1-9][0-9]{0,", whole_digits - 1, "}")
                                     : absl::StrCat("-?(0|[1-9][0-9]{0,", whole_digits - 1,
                                                    "})(\\.[0-9]{1,", fraction_digits, "})?");
  ASSIGN_OR_RETURN(const RegexNode shape, ParseRegex(numerals, budget));
  ASSIGN_OR_RETURN(CharDfa dfa, CompileRegex(shape, RegexMode::kWhole, budget));
  for (const NumberBound& bound : bounds) {
    ASSIGN_OR_RETURN(dfa, Intersect(dfa, BoundAutomaton(bound).Build(), budget));
  }
  for (const int64_t divisor : range.multiples) {
    ASSIGN_OR_RETURN(dfa, Intersect(dfa, MultipleDfa(divisor), budget));
  }
  return dfa;
}

}  // namespace tandem::guided::json_schema
