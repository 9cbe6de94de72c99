#include "common/engine/weight_file.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "xxhash.h"

namespace tandem::engine {
namespace {

constexpr char kMagic[] = {'T', 'N', 'D', 'M', 'W', 'T', 'S', '\n'};
// A temporary file that is this much older than a new one belongs to no running process.
constexpr time_t kAbandonedSeconds = 3600;
constexpr char kTemporary[] = ".tmp-";

struct Header {
  char magic[sizeof(kMagic)];
  uint32_t version;
  uint32_t key_bytes;
  uint64_t payload_bytes;
  uint64_t payload_checksum;
  char key[kWeightFileKeyBytesMax];
  char unused[kWeightFileHeaderBytes - 40 - kWeightFileKeyBytesMax];  // zeros
  uint64_t header_checksum;                                           // of the bytes before it
};
static_assert(sizeof(Header) == kWeightFileHeaderBytes);

uint64_t HeaderChecksum(const Header& header) {
  return XXH3_64bits(&header, offsetof(Header, header_checksum));
}

uint64_t PayloadChecksum(absl::Span<const std::byte> payload,
                         const kernels::ParallelFor& parallel) {
  const size_t chunks = (payload.size() + kWeightFileChunkBytes - 1) / kWeightFileChunkBytes;
  std::vector<uint64_t> digests(chunks);
  parallel(static_cast<int64_t>(chunks), [&](int64_t task, int) {
    const size_t chunk = static_cast<size_t>(task);
    const auto bytes = payload.subspan(chunk * kWeightFileChunkBytes, kWeightFileChunkBytes);
    digests[chunk] = XXH3_64bits(bytes.data(), bytes.size());
  });
  return XXH3_64bits(digests.data(), digests.size() * sizeof(uint64_t));
}

absl::Status SystemError(const std::string& path, const char* what) {
  const int code = errno;
  const std::string message = absl::StrCat(path, ": ", what, ": ", std::strerror(code));
  if (code == ENOENT || code == ENOTDIR) return absl::NotFoundError(message);
  if (code == ENOSPC || code == EDQUOT || code == EFBIG) {
    return absl::ResourceExhaustedError(message);
  }
  return absl::UnavailableError(message);
}

// Everything but the payload's checksum.
absl::Status CheckHeader(const std::string& path, const Header& header, uint64_t file_bytes,
                         const WeightFileWanted& wanted) {
  if (std::memcmp(header.magic, kMagic, sizeof(kMagic)) != 0) {
    return absl::DataLossError(
        absl::StrCat(path, ": not a weight file, its magic number is wrong"));
  }
  if (header.version != kWeightFileVersion) {
    return absl::FailedPreconditionError(
        absl::StrCat(path, ": has version ", header.version, ", expected ", kWeightFileVersion));
  }
  if (header.header_checksum != HeaderChecksum(header) ||
      header.key_bytes > kWeightFileKeyBytesMax) {
    return absl::DataLossError(absl::StrCat(path, ": the header is damaged"));
  }
  const absl::string_view key(header.key, header.key_bytes);
  if (key != wanted.key) {
    return absl::FailedPreconditionError(
        absl::StrCat(path, ": was written for {", key, "}, expected {", wanted.key, "}"));
  }
  if (header.payload_bytes != wanted.payload_bytes ||
      file_bytes != kWeightFileHeaderBytes + wanted.payload_bytes) {
    return absl::DataLossError(absl::StrCat(path, ": has ", file_bytes, " bytes, expected ",
                                            kWeightFileHeaderBytes + wanted.payload_bytes));
  }
  return absl::OkStatus();
}

absl::Status WriteAll(const std::string& path, int fd, const void* data, size_t bytes) {
  const char* next = static_cast<const char*>(data);
  while (bytes > 0) {
    // Below 2 GiB, the most that one call writes.
    const ssize_t written = ::write(fd, next, std::min(bytes, size_t{1} << 30));
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return SystemError(path, "cannot write");
    next += written;
    bytes -= static_cast<size_t>(written);
  }
  return absl::OkStatus();
}

absl::Status CheckRoom(const std::string& path, int fd, uint64_t bytes) {
  struct statvfs room {};
  if (::fstatvfs(fd, &room) != 0) return SystemError(path, "cannot stat the file system");
  const uint64_t free_bytes = uint64_t{room.f_bavail} * room.f_frsize;
  if (free_bytes / 2 >= bytes) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(
      path, ": expected ", 2 * bytes, " free bytes for a file of ", bytes, ", found ", free_bytes));
}

// Removes temporary files for `path` that killed processes left.
void RemoveAbandoned(const std::string& path, const struct stat& own) {
  const size_t slash = path.rfind('/');
  const std::string folder = slash == std::string::npos ? "." : path.substr(0, slash + 1);
  const std::string prefix =
      absl::StrCat(slash == std::string::npos ? path : path.substr(slash + 1), kTemporary);
  DIR* listing = ::opendir(folder.c_str());
  if (listing == nullptr) return;
  while (const dirent* entry = ::readdir(listing)) {
    if (!absl::StartsWith(entry->d_name, prefix)) continue;
    const std::string found = absl::StrCat(folder, "/", entry->d_name);
    struct stat status {};
    if (::lstat(found.c_str(), &status) == 0 && S_ISREG(status.st_mode) &&
        status.st_mtime + kAbandonedSeconds < own.st_mtime) {
      ::unlink(found.c_str());
    }
  }
  ::closedir(listing);
}

// Renames the complete temporary file to its name, unless another process's file for the same key
// is there.
absl::Status Publish(const std::string& temporary, const std::string& path,
                     const WeightFileWanted& wanted, const kernels::ParallelFor& parallel) {
  if (::link(temporary.c_str(), path.c_str()) == 0) return absl::OkStatus();
  if (errno == EEXIST && OpenWeightFile(path, wanted, parallel).ok()) return absl::OkStatus();
  // Some file systems have no hard links. The file at `path` cannot be used, so replace it.
  if (::rename(temporary.c_str(), path.c_str()) != 0) return SystemError(path, "cannot replace");
  return absl::OkStatus();
}

}  // namespace

MappedWeights::~MappedWeights() { ::munmap(mapping_, bytes_); }

absl::Span<const std::byte> MappedWeights::payload() const {
  return {static_cast<const std::byte*>(mapping_) + kWeightFileHeaderBytes,
          bytes_ - kWeightFileHeaderBytes};
}

absl::StatusOr<std::unique_ptr<MappedWeights>> OpenWeightFile(
    const std::string& path, const WeightFileWanted& wanted, const kernels::ParallelFor& parallel) {
  // O_NONBLOCK: opening a pipe or device must not block.
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return SystemError(path, "cannot open");
  const absl::Cleanup close_fd = [fd] { ::close(fd); };
  struct stat status {};
  if (::fstat(fd, &status) != 0) return SystemError(path, "cannot stat");
  if (!S_ISREG(status.st_mode)) {
    return absl::UnavailableError(absl::StrCat(path, ": not a regular file"));
  }
  const size_t bytes = static_cast<size_t>(status.st_size);
  if (bytes <= kWeightFileHeaderBytes) {
    return absl::DataLossError(absl::StrCat(path, ": has ", bytes, " bytes, expected ",
                                            kWeightFileHeaderBytes + wanted.payload_bytes));
  }
  void* mapping = ::mmap(nullptr, bytes, PROT_READ, MAP_SHARED, fd, 0);
  if (mapping == MAP_FAILED) return SystemError(path, "cannot map");
  auto mapped = std::make_unique<MappedWeights>(mapping, bytes);
  Header header;
  std::memcpy(&header, mapping, sizeof(header));
  RETURN_IF_ERROR(CheckHeader(path, header, bytes, wanted));
  // The verification below reads the whole mapping. Ask for huge pages, which some file systems
  // offer.
  ::madvise(mapping, bytes, MADV_WILLNEED);
  ::madvise(mapping, bytes, MADV_HUGEPAGE);
  if (PayloadChecksum(mapped->payload(), parallel) != header.payload_checksum) {
    return absl::DataLossError(absl::StrCat(path, ": the payload is damaged"));
  }
  return mapped;
}

absl::StatusOr<std::unique_ptr<MappedWeights>> WriteWeightFile(
    const std::string& path, const std::string& key, absl::Span<const std::byte> payload,
    const kernels::ParallelFor& parallel) {
  TANDEM_CHECK(!payload.empty() && key.size() <= kWeightFileKeyBytesMax, path);
  Header header = {};
  std::memcpy(header.magic, kMagic, sizeof(kMagic));
  header.version = kWeightFileVersion;
  header.key_bytes = static_cast<uint32_t>(key.size());
  header.payload_bytes = payload.size();
  header.payload_checksum = PayloadChecksum(payload, parallel);
  std::memcpy(header.key, key.data(), key.size());
  header.header_checksum = HeaderChecksum(header);

  std::string temporary = absl::StrCat(path, kTemporary, "XXXXXX");
  const int fd = ::mkostemp(temporary.data(), O_CLOEXEC);
  if (fd < 0) {
    const absl::Status status = SystemError(temporary, "cannot create");
    return absl::UnavailableError(status.message());
  }
  const absl::Cleanup remove = [&temporary] { ::unlink(temporary.c_str()); };
  const absl::Cleanup close_fd = [fd] { ::close(fd); };
  struct stat status {};
  if (::fstat(fd, &status) == 0) RemoveAbandoned(path, status);
  RETURN_IF_ERROR(CheckRoom(path, fd, sizeof(header) + payload.size()));
  RETURN_IF_ERROR(WriteAll(temporary, fd, &header, sizeof(header)));
  RETURN_IF_ERROR(WriteAll(temporary, fd, payload.data(), payload.size()));
  // No fsync: a file that a power failure cut short fails its checksum and is replaced.
  const WeightFileWanted wanted = {key, payload.size()};
  RETURN_IF_ERROR(Publish(temporary, path, wanted, parallel));
  return OpenWeightFile(path, wanted, parallel);
}

}  // namespace tandem::engine
