// Text to value and back for every type a configuration field may have. The `Expected` phrases
// follow "expected " in an error message.
// Thread safety: pure functions. Errors: kInvalidArgument says what was expected; the caller adds
// the key and the value's source.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace tandem::config {

// A number of bytes, written with a suffix: 64MiB, 1.5GiB, 4096, 10MB (powers of ten).
struct Bytes {
  int64_t count = 0;
  friend bool operator==(const Bytes& a, const Bytes& b) { return a.count == b.count; }
  friend bool operator<(const Bytes& a, const Bytes& b) { return a.count < b.count; }
};

// One specialisation per type a field may have.
//   Name():     the type as help and CONFIG.md print it.
//   Expected(): what a value of the type looks like.
//   Parse():    the whole text or an error.
//   Format():   text that Parse reads back to the same value.
template <typename T>
struct ValueTraits;

#define TANDEM_CONFIG_VALUE_TRAITS(Type)                       \
  template <>                                                  \
  struct ValueTraits<Type> {                                   \
    static absl::string_view Name();                           \
    static absl::string_view Expected();                       \
    static absl::StatusOr<Type> Parse(absl::string_view text); \
    static std::string Format(const Type& value);              \
  }

TANDEM_CONFIG_VALUE_TRAITS(bool);
TANDEM_CONFIG_VALUE_TRAITS(int32_t);
TANDEM_CONFIG_VALUE_TRAITS(int64_t);
TANDEM_CONFIG_VALUE_TRAITS(double);
TANDEM_CONFIG_VALUE_TRAITS(std::string);
TANDEM_CONFIG_VALUE_TRAITS(absl::Duration);
TANDEM_CONFIG_VALUE_TRAITS(Bytes);
TANDEM_CONFIG_VALUE_TRAITS(std::vector<std::string>);
#undef TANDEM_CONFIG_VALUE_TRAITS

// Checks of FieldOptions for an address: a port, or host:port, where the port is from 0 to 65535.
// Accepts whatever has a slash, since gRPC has further forms of addresses. The list and the second
// accept what is empty, too.
absl::Status CheckAddress(const std::string& text);
absl::Status CheckAddressOrNone(const std::string& text);
absl::Status CheckAddresses(const std::vector<std::string>& texts);
// Turns a bare port such as "50051" into "127.0.0.1:50051"; returns any other string unchanged.
std::string CompleteAddress(const std::string& text);
// The same for each string of a list.
std::vector<std::string> CompleteAddresses(const std::vector<std::string>& texts);

}  // namespace tandem::config
