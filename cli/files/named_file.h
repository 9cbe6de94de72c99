// Files that flags and arguments name. "-" is standard input or standard output.
// Thread safety: free functions; the main thread.
// Bounds: an input has at most kInputBytesMax bytes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace tandem::cli {

inline constexpr int64_t kInputBytesMax = int64_t{1} << 30;

// A flag, such as --json, and the file that it names; an empty path means none.
struct NamedFile {
  absl::string_view name;
  std::string path;
  bool is_standard() const { return path == "-"; }
};

// Reads standard input to its end. Errors: kResourceExhausted beyond the bound.
absl::StatusOr<std::string> ReadStandardInput(int64_t bytes_max = kInputBytesMax);
// Reads the whole file. Errors name flag and file: kNotFound when it cannot be read,
// kResourceExhausted beyond the bound.
absl::StatusOr<std::string> ReadInput(const NamedFile& file, int64_t bytes_max = kInputBytesMax);
// Writes the file anew; does nothing without a path. Errors: kUnavailable, with flag and file.
absl::Status WriteOutput(const NamedFile& file, absl::string_view text);

// The path of the file itself where links lead to it, so that what replaces it takes the place of
// no link. A path that leads to no regular file stays as it is.
std::string BehindLinks(const std::string& path);

// Whether WriteOutput would succeed for each; leaves no file behind. Does not try a pipe, because
// opening it blocks. Refuses two that are standard output.
absl::Status CheckOutputs(const std::vector<NamedFile>& files);
// Refuses two that are standard input.
absl::Status CheckInputs(const std::vector<NamedFile>& files);
// Prints what a command says to people, unless a result takes standard output.
void PrintReport(absl::string_view text, const std::vector<NamedFile>& results);

}  // namespace tandem::cli
