#include "common/config/value.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

namespace tandem::config {
namespace {

absl::Status Unexpected(absl::string_view expected) { return absl::InvalidArgumentError(expected); }

struct ByteUnit {
  absl::string_view suffix;
  int64_t bytes;
};
// Longest suffixes first, so that "MiB" is not read as "B".
constexpr ByteUnit kByteUnits[] = {
    {"KiB", int64_t{1} << 10},
    {"MiB", int64_t{1} << 20},
    {"GiB", int64_t{1} << 30},
    {"TiB", int64_t{1} << 40},
    {"KB", 1'000},
    {"kB", 1'000},
    {"MB", 1'000'000},
    {"GB", 1'000'000'000},
    {"TB", 1'000'000'000'000},
    {"B", 1},
};

// `number` * `unit` when that is a whole number of bytes that an int64 holds.
absl::StatusOr<Bytes> ScaleBytes(absl::string_view number, int64_t unit) {
  int64_t whole;
  if (absl::SimpleAtoi(number, &whole)) {
    int64_t count;
    if (whole < 0 || __builtin_mul_overflow(whole, unit, &count)) {
      return Unexpected(ValueTraits<Bytes>::Expected());
    }
    return Bytes{count};
  }
  double fraction;
  const bool is_decimal = number.find_first_not_of("0123456789.") == absl::string_view::npos;
  if (!is_decimal || !absl::SimpleAtod(number, &fraction))
    return Unexpected(ValueTraits<Bytes>::Expected());
  const double count = fraction * static_cast<double>(unit);
  // 2^63 is the first double that int64 cannot hold.
  if (!(count >= 0.0) || count >= 9223372036854775808.0 || count != std::floor(count)) {
    return Unexpected(ValueTraits<Bytes>::Expected());
  }
  return Bytes{static_cast<int64_t>(count)};
}

}  // namespace

absl::string_view ValueTraits<bool>::Name() { return "bool"; }
absl::string_view ValueTraits<bool>::Expected() { return "true or false"; }
absl::StatusOr<bool> ValueTraits<bool>::Parse(absl::string_view text) {
  const std::string lower = absl::AsciiStrToLower(text);
  for (const char* yes : {"true", "yes", "on", "1"}) {
    if (lower == yes) return true;
  }
  for (const char* no : {"false", "no", "off", "0"}) {
    if (lower == no) return false;
  }
  return Unexpected(Expected());
}
std::string ValueTraits<bool>::Format(const bool& value) { return value ? "true" : "false"; }

absl::string_view ValueTraits<int32_t>::Name() { return "integer"; }
absl::string_view ValueTraits<int32_t>::Expected() { return "an integer"; }
absl::StatusOr<int32_t> ValueTraits<int32_t>::Parse(absl::string_view text) {
  int32_t value;
  if (!absl::SimpleAtoi(text, &value)) return Unexpected(Expected());
  return value;
}
std::string ValueTraits<int32_t>::Format(const int32_t& value) { return absl::StrCat(value); }

absl::string_view ValueTraits<int64_t>::Name() { return "integer"; }
absl::string_view ValueTraits<int64_t>::Expected() { return "an integer"; }
absl::StatusOr<int64_t> ValueTraits<int64_t>::Parse(absl::string_view text) {
  int64_t value;
  if (!absl::SimpleAtoi(text, &value)) return Unexpected(Expected());
  return value;
}
std::string ValueTraits<int64_t>::Format(const int64_t& value) { return absl::StrCat(value); }

absl::string_view ValueTraits<double>::Name() { return "number"; }
absl::string_view ValueTraits<double>::Expected() { return "a finite number"; }
absl::StatusOr<double> ValueTraits<double>::Parse(absl::string_view text) {
  double value;
  if (!absl::SimpleAtod(text, &value) || !std::isfinite(value)) return Unexpected(Expected());
  return value;
}
std::string ValueTraits<double>::Format(const double& value) {
  std::string text = absl::StrFormat("%.15g", value);
  double read_back;
  if (absl::SimpleAtod(text, &read_back) && read_back == value) return text;
  return absl::StrFormat("%.17g", value);
}

absl::string_view ValueTraits<std::string>::Name() { return "string"; }
absl::string_view ValueTraits<std::string>::Expected() { return "a string"; }
absl::StatusOr<std::string> ValueTraits<std::string>::Parse(absl::string_view text) {
  return std::string(text);
}
std::string ValueTraits<std::string>::Format(const std::string& value) { return value; }

absl::string_view ValueTraits<absl::Duration>::Name() { return "duration"; }
absl::string_view ValueTraits<absl::Duration>::Expected() {
  return "a duration such as 10s, 1.5h or 200ms";
}
absl::StatusOr<absl::Duration> ValueTraits<absl::Duration>::Parse(absl::string_view text) {
  absl::Duration value;
  if (!absl::ParseDuration(text, &value)) return Unexpected(Expected());
  return value;
}
std::string ValueTraits<absl::Duration>::Format(const absl::Duration& value) {
  return absl::FormatDuration(value);
}

absl::string_view ValueTraits<Bytes>::Name() { return "bytes"; }
absl::string_view ValueTraits<Bytes>::Expected() {
  return "a whole number of bytes such as 64MiB, 2GB or 4096";
}
absl::StatusOr<Bytes> ValueTraits<Bytes>::Parse(absl::string_view text) {
  for (const ByteUnit& unit : kByteUnits) {
    if (absl::EndsWith(text, unit.suffix)) {
      text.remove_suffix(unit.suffix.size());
      return ScaleBytes(absl::StripTrailingAsciiWhitespace(text), unit.bytes);
    }
  }
  return ScaleBytes(text, 1);
}
std::string ValueTraits<Bytes>::Format(const Bytes& value) {
  for (const char* suffix : {"TiB", "GiB", "MiB", "KiB"}) {
    for (const ByteUnit& unit : kByteUnits) {
      if (unit.suffix == suffix && value.count != 0 && value.count % unit.bytes == 0) {
        return absl::StrCat(value.count / unit.bytes, suffix);
      }
    }
  }
  return absl::StrCat(value.count);
}

absl::string_view ValueTraits<std::vector<std::string>>::Name() { return "list"; }
absl::string_view ValueTraits<std::vector<std::string>>::Expected() {
  return "strings separated by commas";
}
absl::StatusOr<std::vector<std::string>> ValueTraits<std::vector<std::string>>::Parse(
    absl::string_view text) {
  std::vector<std::string> items;
  if (absl::StripAsciiWhitespace(text).empty()) return items;
  for (absl::string_view item : absl::StrSplit(text, ',')) {
    item = absl::StripAsciiWhitespace(item);
    if (item.empty()) return Unexpected("strings separated by commas, none of them empty");
    items.emplace_back(item);
  }
  return items;
}
std::string ValueTraits<std::vector<std::string>>::Format(const std::vector<std::string>& value) {
  return absl::StrJoin(value, ",");
}

absl::Status CheckAddress(const std::string& text) {
  constexpr uint32_t kPortMax = 65535;
  const size_t colon = text.rfind(':');
  const std::string port = colon == std::string::npos ? text : text.substr(colon + 1);
  uint32_t number = 0;
  const bool is_port = port.find_first_not_of("0123456789") == std::string::npos &&
                       absl::SimpleAtoi(port, &number) && number <= kPortMax;
  if (is_port || text.find('/') != std::string::npos) return absl::OkStatus();
  return absl::InvalidArgumentError("a port or host:port, with a port from 0 to 65535");
}

absl::Status CheckAddressOrNone(const std::string& text) {
  return text.empty() ? absl::OkStatus() : CheckAddress(text);
}

absl::Status CheckAddresses(const std::vector<std::string>& texts) {
  for (const std::string& text : texts) {
    if (!CheckAddress(text).ok())
      return absl::InvalidArgumentError(
          "ports or host:port, with ports from 0 to 65535, separated by commas");
  }
  return absl::OkStatus();
}

std::string CompleteAddress(const std::string& text) {
  const bool is_port = !text.empty() && std::all_of(text.begin(), text.end(),
                                                    [](char c) { return absl::ascii_isdigit(c); });
  return is_port ? absl::StrCat("127.0.0.1:", text) : text;
}

std::vector<std::string> CompleteAddresses(const std::vector<std::string>& texts) {
  std::vector<std::string> addresses;
  for (const std::string& text : texts) addresses.push_back(CompleteAddress(text));
  return addresses;
}

}  // namespace tandem::config
