// Goal: the file gives back what was saved, bit for bit, or nothing: across restarts, at its bound,
// and after damage of any kind. Least recently used blocks go first.
#include "common/storage/block_file.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <deque>
#include <fstream>
#include <iostream>
#include <random>

#include "tests/testing/status_matchers.h"

// Calls of the system that fail with these errors while they are not 0.
static int preadv_error = 0, flock_error = 0;

extern "C" ssize_t preadv(int descriptor, const iovec* to, int count, off_t offset) {
  errno = preadv_error;
  return preadv_error != 0 ? -1 : syscall(SYS_preadv, descriptor, to, count, offset, 0);
}
extern "C" int flock(int descriptor, int operation) noexcept {
  errno = flock_error;
  return flock_error != 0 ? -1 : static_cast<int>(syscall(SYS_flock, descriptor, operation));
}

namespace tandem::storage {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr int64_t kBlockBytes = 5000;  // no multiple of a page
constexpr int64_t kSlotBytes = 8192 + 64;

kv::BlockHash Hash(uint64_t n) { return {n * 0x9e3779b97f4a7c15u, n}; }

// The bytes of a block, drawn from its name and a version.
std::vector<std::byte> Bytes(const kv::BlockHash& hash, uint64_t version = 0) {
  std::mt19937_64 random(hash.high ^ hash.low ^ version);
  std::vector<std::byte> bytes(kBlockBytes);
  for (std::byte& b : bytes) b = static_cast<std::byte>(random());
  return bytes;
}

// While it lives this process's files have no room beyond so many bytes.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) {
    signal(SIGXFSZ, SIG_IGN);
    EXPECT_EQ(getrlimit(RLIMIT_FSIZE, &before_), 0);
    const struct rlimit full = {bytes, before_.rlim_max};
    EXPECT_EQ(setrlimit(RLIMIT_FSIZE, &full), 0);
  }
  ~FileSizeLimit() { EXPECT_EQ(setrlimit(RLIMIT_FSIZE, &before_), 0); }

 private:
  struct rlimit before_ = {};
};

class BlockFileTest : public ::testing::Test {
 protected:
  BlockFileTest() {
    std::string name = ::testing::TempDir() + "/block_file_XXXXXX";
    folder_ = mkdtemp(name.data());
    options_ = {.path = folder_ + "/node.kv",
                .contents = "model a",
                .block_bytes = kBlockBytes,
                .bytes_max = 8192 + 4 * kSlotBytes};
  }
  ~BlockFileTest() override {
    unlink(options_.path.c_str());
    rmdir(folder_.c_str());
  }

  std::unique_ptr<BlockFile> Open() {
    auto file = BlockFile::Open(options_);
    EXPECT_OK(file.status());
    return file.ok() ? *std::move(file) : nullptr;
  }
  // In three pieces, as layers are.
  template <typename Byte>
  static std::vector<absl::Span<Byte>> Pieces(absl::Span<Byte> bytes) {
    return {bytes.subspan(0, 1700), bytes.subspan(1700, 0), bytes.subspan(1700)};
  }
  static absl::Status Save(BlockFile& file, uint64_t n, std::vector<kv::BlockHash>* removed = {},
                           const kv::BlockHash& parent = {}) {
    const auto bytes = Bytes(Hash(n));
    std::vector<kv::BlockHash> mine;
    return file.Save(Hash(n), parent, Pieces(absl::MakeConstSpan(bytes)),
                     removed ? *removed : mine);
  }
  // OK only if the bytes are those that were saved.
  static absl::Status Load(BlockFile& file, uint64_t n) {
    std::vector<std::byte> bytes(kBlockBytes, std::byte{0xee});
    const absl::Status status = file.Load(Hash(n), Pieces(absl::MakeSpan(bytes)));
    if (status.ok()) {
      EXPECT_EQ(bytes, Bytes(Hash(n))) << n;
    }
    return status;
  }
  void Overwrite(int64_t offset, size_t bytes) {
    std::fstream file(options_.path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(offset);
    file << std::string(bytes, '\x5a');
  }
  int64_t FileBytes() const {
    struct stat about = {};
    return stat(options_.path.c_str(), &about) == 0 ? about.st_size : -1;
  }

  std::string folder_;
  BlockFileOptions options_;
};

TEST_F(BlockFileTest, KeepsItsBound) {
  const auto file = Open();
  ASSERT_EQ(file->slots(), 4);
  std::vector<kv::BlockHash> removed;
  for (uint64_t n = 1; n <= 4; ++n) EXPECT_OK(Save(*file, n, &removed));
  EXPECT_THAT(removed, IsEmpty());
  EXPECT_OK(Load(*file, 1));  // now 2 is the least recently used
  EXPECT_OK(Save(*file, 5, &removed));
  EXPECT_THAT(removed, ElementsAre(Hash(2)));
  EXPECT_THAT(Load(*file, 2), testing::StatusIs(absl::StatusCode::kNotFound, ::testing::_));
  for (const uint64_t n : {1, 3, 4, 5}) EXPECT_OK(Load(*file, n));
  EXPECT_LE(FileBytes(), options_.bytes_max);
}

TEST_F(BlockFileTest, TheNextProcessKnowsWhatFollowsWhat) {
  const auto follow = [this](uint64_t first) {  // a prefix of two blocks
    EXPECT_OK(Save(*Open(), first));
    EXPECT_OK(Save(*Open(), first + 1, nullptr, Hash(first)));
  };
  follow(1);
  follow(11);
  const auto file = Open();
  ASSERT_EQ(file->slots(), 4);
  EXPECT_EQ(file->ParentOf(Hash(2)), Hash(1));
  std::vector<kv::BlockHash> removed;
  for (uint64_t n = 21; n <= 24; ++n) EXPECT_OK(Save(*file, n, &removed));
  EXPECT_THAT(removed, ElementsAre(Hash(2), Hash(1), Hash(12), Hash(11)));
}

TEST_F(BlockFileTest, APrefixAsLongAsTheFileKeepsItsBeginning) {
  auto file = Open();
  std::vector<kv::BlockHash> removed;
  for (uint64_t n = 1; n <= 5; ++n)
    EXPECT_OK(Save(*file, n, &removed, n == 1 ? kv::BlockHash() : Hash(n - 1)));
  EXPECT_THAT(removed, IsEmpty());
  EXPECT_TRUE(file->Contains(Hash(4)));
  EXPECT_FALSE(file->Contains(Hash(5)));
}

TEST_F(BlockFileTest, SavingTwiceIsSavingOnce) {
  const auto file = Open();
  EXPECT_OK(Save(*file, 1));
  EXPECT_OK(Save(*file, 1));
  EXPECT_EQ(file->size(), 1);
}

TEST_F(BlockFileTest, TheNextProcessFindsTheBlocks) {
  for (uint64_t n = 1; n <= 6; ++n) EXPECT_OK(Save(*Open(), n));
  const auto file = Open();
  EXPECT_THAT(file->Hashes(), ElementsAre(Hash(3), Hash(4), Hash(5), Hash(6)));
  for (uint64_t n = 3; n <= 6; ++n) EXPECT_OK(Load(*file, n));
}

TEST_F(BlockFileTest, OtherContentsOrSizesAreDropped) {
  EXPECT_OK(Save(*Open(), 1));
  options_.contents = "model b";
  EXPECT_EQ(Open()->size(), 0);
  options_.contents = "model a";
  EXPECT_EQ(Open()->size(), 0) << "the blocks of model a are gone for good";
  EXPECT_OK(Save(*Open(), 1));
  options_.bytes_max += kSlotBytes;
  EXPECT_EQ(Open()->size(), 0);
  EXPECT_EQ(Open()->slots(), 5);
}

TEST_F(BlockFileTest, DamageIsFoundAndDropped) {
  for (uint64_t n = 1; n <= 4; ++n) EXPECT_OK(Save(*Open(), n));
  const int64_t slots = 4096 + 4096;  // header and entries
  Overwrite(slots + 8192 + 4900, 7);  // in the second block
  const auto file = Open();
  EXPECT_OK(Load(*file, 1));
  EXPECT_THAT(Load(*file, 2), testing::StatusIs(absl::StatusCode::kDataLoss, HasSubstr("damaged")));
  EXPECT_THAT(Load(*file, 2), testing::StatusIs(absl::StatusCode::kNotFound, ::testing::_));
  EXPECT_EQ(file->size(), 3);
  EXPECT_OK(Save(*file, 2));
  EXPECT_OK(Load(*file, 2));
}

TEST_F(BlockFileTest, ADamagedEntryIsAFreeSlot) {
  for (uint64_t n = 1; n <= 3; ++n) EXPECT_OK(Save(*Open(), n));
  Overwrite(4096 + 64 + 9, 1);  // in the second entry's hash
  const auto file = Open();
  EXPECT_THAT(file->Hashes(), ElementsAre(Hash(1), Hash(3)));
}

TEST_F(BlockFileTest, ACutFileIsEmpty) {
  for (uint64_t n = 1; n <= 3; ++n) EXPECT_OK(Save(*Open(), n));
  ASSERT_EQ(truncate(options_.path.c_str(), FileBytes() - 1), 0);
  EXPECT_EQ(Open()->size(), 0);
}

TEST_F(BlockFileTest, ABlockInAnothersSlotIsDamage) {
  for (uint64_t n = 1; n <= 2; ++n) EXPECT_OK(Save(*Open(), n));
  std::fstream file(options_.path, std::ios::in | std::ios::out | std::ios::binary);
  std::string slot(kBlockBytes, 0);
  file.seekg(8192);
  file.read(slot.data(), kBlockBytes);
  file.seekp(8192 + 8192);
  file << slot;
  file.close();
  EXPECT_THAT(Load(*Open(), 2), testing::StatusIs(absl::StatusCode::kDataLoss, ::testing::_));
}

TEST_F(BlockFileTest, ForgottenBlocksStayForgotten) {
  {
    const auto file = Open();
    EXPECT_OK(Save(*file, 1));
    EXPECT_OK(Save(*file, 2));
    file->Forget(Hash(1));
    file->Forget(Hash(9));
  }
  EXPECT_THAT(Open()->Hashes(), ElementsAre(Hash(2)));
}

TEST_F(BlockFileTest, OneProcessAtATime) {
  const auto file = Open();
  EXPECT_THAT(BlockFile::Open(options_), testing::StatusIs(absl::StatusCode::kFailedPrecondition,
                                                           HasSubstr("another process")));
}

TEST_F(BlockFileTest, OnlyItsOwnerReadsIt) {
  Open();
  struct stat about = {};
  ASSERT_EQ(stat(options_.path.c_str(), &about), 0);
  EXPECT_EQ(about.st_mode & 0777, 0600u);
  // Also where the file was there, readable by all.
  ASSERT_EQ(chmod(options_.path.c_str(), 0644), 0);
  Open();
  ASSERT_EQ(stat(options_.path.c_str(), &about), 0);
  EXPECT_EQ(about.st_mode & 0777, 0600u);
}

TEST_F(BlockFileTest, AFileWithASecondNameIsRefusedAndKept) {
  EXPECT_OK(Save(*Open(), 1));
  const std::string other = folder_ + "/other";
  ASSERT_EQ(link(options_.path.c_str(), other.c_str()), 0);
  const auto refused = testing::StatusIs(absl::StatusCode::kPermissionDenied,
                                         HasSubstr("node.kv: the file has 2 names"));
  EXPECT_THAT(BlockFile::Open(options_), refused);
  options_.contents = "model b";  // which would empty it
  EXPECT_THAT(BlockFile::Open(options_), refused);
  unlink(other.c_str());
  options_.contents = "model a";
  EXPECT_THAT(Open()->Hashes(), ElementsAre(Hash(1)));
}

TEST_F(BlockFileTest, AnotherUsersFileIsRefused) {
  if (geteuid() != 0) GTEST_SKIP() << "only root gives files away";
  Open();
  ASSERT_EQ(chown(options_.path.c_str(), 4711, static_cast<gid_t>(-1)), 0);
  EXPECT_THAT(BlockFile::Open(options_),
              testing::StatusIs(absl::StatusCode::kPermissionDenied,
                                HasSubstr("node.kv: the file belongs to user 4711")));
}

TEST_F(BlockFileTest, WithoutAPathItLiesInMemory) {
  options_.path.clear();
  const auto file = Open(), other = Open();
  for (uint64_t n = 1; n <= 5; ++n) EXPECT_OK(Save(*file, n));
  EXPECT_EQ(file->size(), 4);
  EXPECT_EQ(Load(*file, 1).code(), absl::StatusCode::kNotFound);
  EXPECT_OK(Load(*file, 5));
  EXPECT_EQ(other->size(), 0);
  options_.bytes_max = 100;
  EXPECT_THAT(std::string(BlockFile::Open(options_).status().message()),
              HasSubstr("swap space: 100 bytes hold no KV block"));
}

TEST_F(BlockFileTest, SaysWhatItCannotOpen) {
  options_.bytes_max = 8192 + kSlotBytes - 1;
  EXPECT_THAT(BlockFile::Open(options_),
              testing::StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("hold no KV block")));
  options_.bytes_max = 1 << 20;
  options_.path = folder_ + "/none/node.kv";
  EXPECT_THAT(BlockFile::Open(options_),
              testing::StatusIs(absl::StatusCode::kNotFound, HasSubstr("none/node.kv")));
  options_.path = folder_;
  EXPECT_FALSE(BlockFile::Open(options_).ok());
  options_.path = folder_ + "/node.kv";
  options_.contents = std::string(5000, 'x');
  EXPECT_THAT(BlockFile::Open(options_),
              testing::StatusIs(absl::StatusCode::kInvalidArgument, ::testing::_));
}

// A bound on the process's files stands for a full disk.
// The file system has room for two blocks. The slots that were written go on being used, and when
// there is room again the others are, too.
TEST_F(BlockFileTest, OnAFullDiskBlocksMakeRoomForEachOther) {
  const auto file = Open();
  EXPECT_OK(Save(*file, 1));
  EXPECT_OK(Save(*file, 2));
  {
    const FileSizeLimit full(8192 + 2 * 8192 + 100);
    for (uint64_t n = 3; n < 400; ++n) {
      std::vector<kv::BlockHash> removed;
      ASSERT_OK(Save(*file, n, &removed)) << n;
      ASSERT_THAT(removed, ElementsAre(Hash(n - 2)));
      ASSERT_OK(Load(*file, n - 1));
      ASSERT_OK(Load(*file, n));
    }
  }
  for (uint64_t n = 400; n < 1000; ++n) EXPECT_OK(Save(*file, n));
  EXPECT_EQ(file->size(), file->slots());
}

TEST_F(BlockFileTest, AFullDiskWithoutABlockRefuses) {
  const auto file = Open();
  {
    const FileSizeLimit full(8192 + 100);
    for (int i = 0; i < 2; ++i) {
      const absl::Status refused = Save(*file, 3);
      EXPECT_FALSE(refused.ok());
      EXPECT_THAT(std::string(refused.message()), HasSubstr("node.kv: write: File too large"));
    }
  }
  EXPECT_THAT(Load(*file, 3), testing::StatusIs(absl::StatusCode::kNotFound, ::testing::_));
  EXPECT_OK(Save(*file, 3));
  EXPECT_OK(Load(*file, 3));
}

// A disk that fails for a moment costs no stored block.
TEST_F(BlockFileTest, AFailedReadAtOpenKeepsTheBlocks) {
  for (uint64_t n = 1; n <= 4; ++n) EXPECT_OK(Save(*Open(), n));
  preadv_error = EIO;
  const auto failed = BlockFile::Open(options_);
  preadv_error = 0;
  EXPECT_THAT(std::string(failed.status().message()), HasSubstr("node.kv: read: Input/output"));
  const auto file = Open();
  for (uint64_t n = 1; n <= 4; ++n) EXPECT_OK(Load(*file, n));
}

TEST_F(BlockFileTest, AFileSystemWithoutLocksIsNamedAsSuch) {
  flock_error = ENOLCK;
  const auto failed = BlockFile::Open(options_);
  flock_error = 0;
  EXPECT_THAT(std::string(failed.status().message()), HasSubstr("node.kv: flock: No locks"));
}

// Saves, loads, forgets, restarts and damage, against a list in memory.
TEST_F(BlockFileTest, AgreesWithAListUnderRandomOperations) {
  const uint64_t seed = std::random_device()();
  std::cout << "seed " << seed << "\n";
  std::mt19937_64 random(seed);
  options_.bytes_max = 8192 + 7 * kSlotBytes;
  auto file = Open();
  ASSERT_EQ(file->slots(), 7);
  std::deque<uint64_t> uses;   // least recent first
  std::deque<uint64_t> saves;  // the same blocks in the order of their saving
  const auto drop = [&](uint64_t n) {
    std::erase(uses, n);
    std::erase(saves, n);
  };
  for (int step = 0; step < 4000; ++step) {
    SCOPED_TRACE(step);
    const uint64_t n = random() % 12;
    const bool known = std::find(uses.begin(), uses.end(), n) != uses.end();
    const uint64_t operation = random() % 40;
    if (operation < 18) {
      EXPECT_EQ(Load(*file, n).ok(), known);
      if (known) {
        std::erase(uses, n);
        uses.push_back(n);
      }
    } else if (operation == 18) {
      file->Forget(Hash(n));
      drop(n);
    } else if (operation == 19) {
      file.reset();
      file = Open();
      uses = saves;
    } else {
      std::vector<kv::BlockHash> removed, made_room;
      EXPECT_OK(Save(*file, n, &removed));
      if (!known) {
        if (uses.size() == 7) {
          made_room.push_back(Hash(uses.front()));
          drop(uses.front());
        }
        uses.push_back(n);
        saves.push_back(n);
      }
      EXPECT_EQ(removed, made_room);
    }
    std::vector<kv::BlockHash> expected;
    for (const uint64_t each : uses) expected.push_back(Hash(each));
    ASSERT_EQ(file->Hashes(), expected);
  }
}

}  // namespace
}  // namespace tandem::storage
