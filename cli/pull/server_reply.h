// What the headers of a server's reply say of a file.
// Thread safety: none; one thread reads a reply.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace tandem::cli {

// By what a server tells versions of a file apart. Empty: it did not say.
struct FileVersion {
  std::string etag, last_modified;  // as in the headers of these names
};

// Whether equal ETags of this form mean equal bytes.
bool IsStrong(absl::string_view etag);

struct ServerReply {
  long status = 0;
  FileVersion version;
  std::string date;
  int64_t length = -1;      // of the body; -1: not said, as below
  int64_t range_from = -1;  // where in the file the body begins, when it is a part
  int64_t file_bytes = -1;  // of the whole file, when the body is a part
  std::optional<absl::Duration> retry_after;

  // Reads "NAME: VALUE"; what it does not know, or is malformed, changes nothing.
  void ReadHeader(absl::string_view line);
  // Without a date that cannot tell versions apart: the file was changed when it was sent.
  FileVersion StrongVersion() const;
};

}  // namespace tandem::cli
