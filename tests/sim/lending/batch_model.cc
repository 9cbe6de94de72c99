#include "tests/sim/lending/batch_model.h"

#include <algorithm>
#include <list>
#include <vector>

namespace tandem::sim {
namespace {

struct Sequence {
  size_t index = 0;
  int64_t at_us = 0;
  int64_t tokens = 0;        // prompt and answer so far
  int64_t final_tokens = 0;  // when it is answered
  int64_t computed = 0;      // have KV
};

struct BatchNode {
  std::vector<Sequence> batch;  // the oldest first
  int64_t step_ends_us = -1;    // -1: idle
};

class BatchModel {
 public:
  BatchModel(const Topology& topology, bool migrates)
      : t_(topology), migrates_(migrates), nodes_(static_cast<size_t>(topology.decode_nodes)) {}

  std::vector<int64_t> Run(const std::vector<SimRequest>& requests) {
    for (size_t i = 0; i < requests.size(); ++i) {
      const SimRequest& r = requests[i];
      const int64_t prompt = r.own_tokens + r.shared_tokens;
      queue_.push_back(
          {.index = i, .at_us = r.at_us, .tokens = prompt, .final_tokens = prompt + r.max_tokens});
    }
    answered_us_.assign(requests.size(), 0);
    for (size_t left = requests.size(); left > 0;) {
      PlaceQueued();
      for (BatchNode& node : nodes_) Start(node);
      Advance();
      for (BatchNode& node : nodes_)
        if (node.step_ends_us == now_us_) left -= Finish(node);
    }
    return answered_us_;
  }

 private:
  // With the token that comes next.
  int64_t BlocksOf(const Sequence& s) const {
    return (s.tokens + 1 + t_.block_tokens - 1) / t_.block_tokens;
  }
  int64_t Used(const BatchNode& node) const {
    int64_t blocks = 0;
    for (const Sequence& s : node.batch) blocks += BlocksOf(s);
    return blocks;
  }
  bool Fits(const BatchNode& node, const Sequence& s) const {
    return std::ssize(node.batch) < t_.max_sequences &&
           Used(node) + BlocksOf(s) <= t_.blocks_per_node;
  }
  BatchNode* Emptiest(const Sequence& s) {
    BatchNode* best = nullptr;
    for (BatchNode& node : nodes_)
      if (Fits(node, s) && (best == nullptr || Used(node) < Used(*best))) best = &node;
    return best;
  }
  void PlaceQueued() {
    for (auto it = queue_.begin(); it != queue_.end() && it->at_us <= now_us_;) {
      BatchNode* node = Emptiest(*it);
      if (node == nullptr && migrates_ && Repack(*it)) node = Emptiest(*it);
      if (node == nullptr) {
        ++it;
        continue;
      }
      node->batch.push_back(*it);
      it = queue_.erase(it);
    }
  }
  // Packs all running sequences anew, the largest first, each where least is left, so that `more`
  // has room; false, and nothing changes, if that packing leaves it none. `more` keeps its place
  // for the caller.
  bool Repack(const Sequence& more) {
    std::vector<Sequence> all = {more};
    for (const BatchNode& node : nodes_)
      all.insert(all.end(), node.batch.begin(), node.batch.end());
    std::stable_sort(all.begin(), all.end(), [this](const Sequence& a, const Sequence& b) {
      return BlocksOf(a) > BlocksOf(b);
    });
    std::vector<BatchNode> packed(nodes_.size());
    for (const Sequence& s : all) {
      BatchNode* best = nullptr;
      for (BatchNode& node : packed)
        if (Fits(node, s) && (best == nullptr || Used(node) > Used(*best))) best = &node;
      if (best == nullptr) return false;
      best->batch.push_back(s);
    }
    for (size_t i = 0; i < packed.size(); ++i) {
      std::erase_if(packed[i].batch, [&](const Sequence& s) { return s.index == more.index; });
      packed[i].step_ends_us = nodes_[i].step_ends_us;
    }
    nodes_ = std::move(packed);
    return true;
  }
  void Start(BatchNode& node) {
    if (node.step_ends_us >= 0 || node.batch.empty()) return;
    while (Used(node) > t_.blocks_per_node) Overflow(node);
    int64_t rows = 0;
    for (Sequence& s : node.batch) {
      const int64_t take = std::min(s.tokens - s.computed, t_.max_batch_tokens - rows);
      s.computed += take;
      rows += take;
    }
    node.step_ends_us = now_us_ + t_.step_us + t_.row_us * rows;
  }
  // The youngest sequence moves to another node, or is computed again later.
  void Overflow(BatchNode& node) {
    Sequence last = node.batch.back();
    node.batch.pop_back();
    if (BatchNode* other = migrates_ ? Emptiest(last) : nullptr; other != nullptr) {
      other->batch.push_back(last);
      return;
    }
    last.computed = 0;
    queue_.push_front(last);
  }
  void Advance() {
    int64_t next = -1;
    for (const BatchNode& node : nodes_)
      if (node.step_ends_us >= 0 && (next < 0 || node.step_ends_us < next))
        next = node.step_ends_us;
    for (const Sequence& s : queue_)
      if (s.at_us > now_us_ && (next < 0 || s.at_us < next)) next = s.at_us;
    now_us_ = next;
  }
  // Ends the step; how many sequences are answered.
  size_t Finish(BatchNode& node) {
    node.step_ends_us = -1;
    for (Sequence& s : node.batch) s.tokens += s.computed == s.tokens ? 1 : 0;
    return std::erase_if(node.batch, [this](const Sequence& s) {
      const bool ends = s.tokens >= s.final_tokens;
      if (ends) answered_us_[s.index] = now_us_;
      return ends;
    });
  }

  const Topology& t_;
  const bool migrates_;
  int64_t now_us_ = 0;
  std::vector<BatchNode> nodes_;
  std::list<Sequence> queue_;
  std::vector<int64_t> answered_us_;
};

}  // namespace

std::vector<int64_t> RunBatchModel(const Schedule& schedule, bool migrates) {
  return BatchModel(schedule.topology, migrates).Run(schedule.requests);
}

}  // namespace tandem::sim
