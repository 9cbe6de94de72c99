#include "cli/files/named_file.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace tandem::cli {
namespace {

constexpr int kLinksMax = 40;  // one after another, as in Linux

// Reads to the end of the stream, but never more than one byte beyond the bound.
absl::StatusOr<std::string> ReadAll(std::istream& in, absl::string_view what, int64_t bytes_max) {
  constexpr size_t kPieceBytes = 64 << 10;
  std::string text;
  std::string piece(kPieceBytes, '\0');
  while (in.read(piece.data(), kPieceBytes), in.gcount() > 0) {
    text.append(piece, 0, static_cast<size_t>(in.gcount()));
    if (static_cast<int64_t>(text.size()) > bytes_max)
      return absl::ResourceExhaustedError(
          absl::StrCat(what, ": longer than ", bytes_max, " bytes, the bound"));
  }
  return text;
}

std::string NameOf(const NamedFile& file) { return absl::StrCat(file.name, " ", file.path); }

// The path to which links lead, though no file is there.
std::string TargetOf(const std::string& link) {
  std::filesystem::path path = link;
  std::error_code error;
  for (int i = 0; i < kLinksMax && std::filesystem::is_symlink(path, error); ++i) {
    const std::filesystem::path target = std::filesystem::read_symlink(path, error);
    if (error) break;
    path = path.parent_path() / target;  // an absolute target stays as it is
  }
  return path.string();
}

absl::Status CheckOutput(const NamedFile& file) {
  std::error_code error;
  const bool existed = std::filesystem::exists(file.path, error);
  const bool link = std::filesystem::is_symlink(file.path, error);
  const bool other_kind = existed && !std::filesystem::is_regular_file(file.path, error) &&
                          !std::filesystem::is_directory(file.path, error);
  if (file.path.empty() || file.is_standard() || other_kind) return absl::OkStatus();
  // What a link that leads nowhere names is made and removed, and the link stays.
  const std::string made = !existed && link ? TargetOf(file.path) : file.path;
  if (!std::ofstream(made, std::ios::app))
    return absl::InvalidArgumentError(absl::StrCat(NameOf(file), ": cannot be written"));
  if (!existed) std::filesystem::remove(made, error);
  return absl::OkStatus();
}

absl::Status CheckOneStandard(const std::vector<NamedFile>& files, absl::string_view stream) {
  const NamedFile* first = nullptr;
  for (const NamedFile& file : files) {
    if (!file.is_standard()) continue;
    if (first != nullptr)
      return absl::InvalidArgumentError(
          absl::StrCat(first->name, " and ", file.name, ": both are -, and there is one ", stream));
    first = &file;
  }
  return absl::OkStatus();
}

}  // namespace

std::string BehindLinks(const std::string& path) {
  std::error_code error;
  const std::filesystem::path real = std::filesystem::canonical(path, error);
  return !error && std::filesystem::is_regular_file(real, error) ? real.string() : path;
}

absl::StatusOr<std::string> ReadStandardInput(int64_t bytes_max) {
  return ReadAll(std::cin, "standard input", bytes_max);
}

absl::StatusOr<std::string> ReadInput(const NamedFile& file, int64_t bytes_max) {
  if (file.is_standard()) return ReadAll(std::cin, NameOf(file), bytes_max);
  std::ifstream in(file.path, std::ios::binary);
  // A folder can be opened, but not read.
  if (!in || std::filesystem::is_directory(file.path))
    return absl::NotFoundError(absl::StrCat(NameOf(file), ": cannot be read"));
  return ReadAll(in, NameOf(file), bytes_max);
}

absl::Status WriteOutput(const NamedFile& file, absl::string_view text) {
  if (file.path.empty()) return absl::OkStatus();
  bool written = false;
  if (file.is_standard()) {
    written =
        std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0;
  } else {
    std::ofstream out(file.path, std::ios::binary);
    out << text;
    out.close();
    written = static_cast<bool>(out);
  }
  return written ? absl::OkStatus()
                 : absl::UnavailableError(absl::StrCat(NameOf(file), ": cannot be written"));
}

absl::Status CheckOutputs(const std::vector<NamedFile>& files) {
  RETURN_IF_ERROR(CheckOneStandard(files, "standard output"));
  for (const NamedFile& file : files) RETURN_IF_ERROR(CheckOutput(file));
  return absl::OkStatus();
}

absl::Status CheckInputs(const std::vector<NamedFile>& files) {
  return CheckOneStandard(files, "standard input");
}

void PrintReport(absl::string_view text, const std::vector<NamedFile>& results) {
  const bool taken = std::any_of(results.begin(), results.end(),
                                 [](const NamedFile& file) { return file.is_standard(); });
  if (taken) return;
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
}

}  // namespace tandem::cli
