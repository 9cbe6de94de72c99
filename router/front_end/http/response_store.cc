#include "router/front_end/http/response_store.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace tandem::router {

void ResponseStore::Keep(const Owner& owner, const std::string& id, Kept kept) {
  Entry entry;
  entry.id = id;
  entry.bytes =
      static_cast<int64_t>(kept.object.size() + kept.items.size() + id.size()) + kOverheadBytes;
  entry.kept = std::make_shared<const Kept>(std::move(kept));
  absl::MutexLock lock(&mutex_);
  Remove(owner, id);
  if (!on() || entry.bytes > options_.bytes_max) {
    ++counts_.dropped;
    return;
  }
  Shelf& shelf = shelves_[owner];
  shelf.bytes += entry.bytes;
  counts_.bytes += entry.bytes;
  ++counts_.responses;
  shelf.entries.push_front(std::move(entry));
  shelf.by_id[id] = shelf.entries.begin();
  MakeRoom();
}

std::shared_ptr<const ResponseStore::Kept> ResponseStore::Find(const Owner& owner,
                                                               const std::string& id) {
  absl::MutexLock lock(&mutex_);
  const auto shelf = shelves_.find(owner);
  if (shelf == shelves_.end()) return nullptr;
  const auto found = shelf->second.by_id.find(id);
  if (found == shelf->second.by_id.end()) return nullptr;
  std::list<Entry>& entries = shelf->second.entries;
  entries.splice(entries.begin(), entries, found->second);
  return found->second->kept;
}

bool ResponseStore::Erase(const Owner& owner, const std::string& id) {
  absl::MutexLock lock(&mutex_);
  return Remove(owner, id);
}

ResponseStore::Counts ResponseStore::counts() const {
  absl::MutexLock lock(&mutex_);
  return counts_;
}

std::string ResponseStore::MetricsText() const {
  const Counts now = counts();
  return absl::StrCat(
      "# HELP tandem_responses_kept Answers of /v1/responses that can be named.\n"
      "# TYPE tandem_responses_kept gauge\n"
      "tandem_responses_kept ",
      now.responses, "\n# HELP tandem_responses_kept_bytes What they hold of at most ",
      options_.bytes_max,
      " bytes.\n# TYPE tandem_responses_kept_bytes gauge\n"
      "tandem_responses_kept_bytes ",
      now.bytes,
      "\n# HELP tandem_responses_dropped_total Those that made room for others, or were too "
      "large to keep.\n"
      "# TYPE tandem_responses_dropped_total counter\n"
      "tandem_responses_dropped_total ",
      now.dropped, "\n");
}

bool ResponseStore::Remove(const Owner& owner, const std::string& id) {
  const auto shelf = shelves_.find(owner);
  if (shelf == shelves_.end()) return false;
  const auto found = shelf->second.by_id.find(id);
  if (found == shelf->second.by_id.end()) return false;
  const std::list<Entry>::iterator entry = found->second;
  shelf->second.bytes -= entry->bytes;
  counts_.bytes -= entry->bytes;
  --counts_.responses;
  shelf->second.by_id.erase(found);
  shelf->second.entries.erase(entry);
  if (shelf->second.entries.empty()) shelves_.erase(shelf);
  return true;
}

void ResponseStore::MakeRoom() {
  while (counts_.responses > options_.responses_max || counts_.bytes > options_.bytes_max) {
    const bool too_many = counts_.responses > options_.responses_max;
    const auto size = [&](const Shelf& shelf) {
      return too_many ? static_cast<int64_t>(shelf.entries.size()) : shelf.bytes;
    };
    auto most = shelves_.begin();
    for (auto it = shelves_.begin(); it != shelves_.end(); ++it) {
      if (size(it->second) > size(most->second)) most = it;
    }
    // A copy: what it names goes.
    const std::string id = most->second.entries.back().id;
    Remove(most->first, id);
    ++counts_.dropped;
  }
}

}  // namespace tandem::router
