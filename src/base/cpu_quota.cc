#include "base/cpu_quota.h"

#include <cstdlib>

#include "base/cgroup.h"

namespace cutaway {
namespace {

// 0: no limit, or not a number.
double ratio(const char* quota, const char* period) {
  const double q = std::strtod(quota, nullptr);
  const double p = std::strtod(period, nullptr);
  return q > 0 && p > 0 ? q / p : 0;
}

// "150000 100000" or "max 100000".
double quota_v2(const std::string& group) {
  const std::string text = read_small_file(group + "/cpu.max");
  const size_t space = text.find(' ');
  if (space == std::string::npos) return 0;
  return ratio(text.substr(0, space).c_str(), text.c_str() + space + 1);
}

// −1 in cpu.cfs_quota_us: no limit.
double quota_v1(const std::string& group) {
  return ratio(read_small_file(group + "/cpu.cfs_quota_us").c_str(),
               read_small_file(group + "/cpu.cfs_period_us").c_str());
}

}  // namespace

double cgroup_cpu_quota(const std::string& root) {
  double least = 0;
  for (const CgroupFolder& folder : cgroup_folders(root, "cpu")) {
    const double quota = folder.v2 ? quota_v2(folder.path) : quota_v1(folder.path);
    if (quota > 0 && (least == 0 || quota < least)) least = quota;
  }
  return least;
}

}  // namespace cutaway
