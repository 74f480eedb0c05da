-- tables.lua: what the shim reads of a job, and what it may change.

local M = {}

-- What is sent of job_desc: Lua's name -> "text", the width of the number in Slurm's job_desc_msg_t, which decides the
-- value that means "not set", or "flag" where that is 0 or false. A name that a release does not have reads as nil.
-- Left out with intent: pn_min_memory (a flag in bit 63 of what Lua holds in a double) and user_name (slurmctld would
-- ask the machine's directory service, without a bound on the time).
M.FIELDS = {
  account = "text", admin_comment = "text", array_inx = "text", comment = "text", cpus_per_tres = "text",
  default_account = "text", dependency = "text", exc_nodes = "text", extra = "text", features = "text",
  licenses = "text", mem_per_tres = "text", name = "text", partition = "text", prefer = "text", qos = "text",
  req_nodes = "text", reservation = "text", tres_per_job = "text", tres_per_node = "text", tres_per_socket = "text",
  tres_per_task = "text", work_dir = "text",
  begin_time = "flag", bitflags = "flag", contiguous = "flag", cron_job = "flag", immediate = "flag",
  ntasks_per_board = "flag", segment_size = "flag",
  cores_per_socket = 16, cpus_per_task = 16, ntasks_per_core = 16, ntasks_per_node = 16, ntasks_per_socket = 16,
  ntasks_per_tres = 16, pn_min_cpus = 16, requeue = 16, shared = 16, sockets_per_node = 16,
  threads_per_core = 16,
  het_job_offset = 32, max_cpus = 32, max_nodes = 32, min_cpus = 32, min_nodes = 32, num_tasks = 32,
  pn_min_tmp_disk = 32, req_switch = 32, time_limit = 32, time_min = 32, wait4switch = 32,
  min_mem_per_cpu = 64, min_mem_per_node = 64,
}

-- The variables of the job's environment that are read, and that an answer may set: a user's wishes to gsub, and those
-- of Slurm. The latter are ENV_NAMES of slurm_plugins/decide/steps.py; a test holds them equal.
M.ENV_NAMES = {
  "GSUB", "GSUB_REPACK", "GSUB_RETUNE", "GSUB_SMOKE", "GSUB_RUN_TIME", "GSUB_RESTART", "GSUB_DECISION",
  "GSUB_WORKLOAD", "GSUB_SENSITIVITY",
  "SLURM_CPUS_PER_GPU", "SLURM_CPUS_PER_TASK", "SLURM_GPUS_PER_NODE", "SLURM_GPUS_PER_SOCKET", "SLURM_GRES",
  "SLURM_MEM_PER_CPU", "SLURM_MEM_PER_GPU", "SLURM_MEM_PER_NODE", "SLURM_NPROCS", "SLURM_NTASKS",
  "SLURM_NTASKS_PER_GPU", "SLURM_NTASKS_PER_NODE", "SLURM_NTASKS_PER_TRES", "SLURM_TRES_PER_TASK",
  "SRUN_CPUS_PER_TASK",
}
M.ENV_VALUE = { 0, 1024, "A-Za-z0-9_.,:()=*/+@%% -" } -- lowest and highest length, characters

-- The numbers by which Slurm says why a job is refused (slurm_errno.h, ESLURM_*), lowest and highest.
M.ERRNO = { 2000, 2999 }

-- What an answer may change: name -> kind, lowest and highest value or length, characters of a text. The same as
-- slurm_plugins/decide/edits.py; a test holds them equal. An answer with anything else is dropped whole.
local COUNT = { "int", 1, 65000 }
local TRES = { "text", 1, 256, "A-Za-z0-9_.:/=,-" }
local HOSTS = { "text", 1, 1000, "A-Za-z0-9_.,%[%]-" }
local FEATURES = { "text", 1, 1000, "A-Za-z0-9_.,:&|*=()%[%]-" }
M.EDITS = {
  min_nodes = COUNT, max_nodes = COUNT, num_tasks = { "int", 1, 10000000 }, ntasks_per_node = COUNT,
  shared = { "int", 0, 0 }, gres = TRES,
  cpus_per_task = COUNT, cpus_per_tres = TRES, min_cpus = { "int", 1, 10000000 }, pn_min_cpus = COUNT,
  min_mem_per_node = { "int", 1, 2 ^ 40 }, min_mem_per_cpu = { "int", 1, 2 ^ 40 }, mem_per_tres = TRES,
  req_switch = COUNT, wait4switch = { "int", 0, 31536000 }, segment_size = COUNT,
  features = FEATURES, prefer = FEATURES, exc_nodes = HOSTS,
  admin_comment = { "text", 1, 64, "A-Za-z0-9:-" },
}

-- A job on which gsub-act, an operator, has set what limits count: Slurm holds it to those no longer. The word is in its
-- Comment, as MARK of slurm_plugins/act/mark.py, and these fields its user may not change while it waits.
M.MARK = "gsub:guarded"
M.GUARDED = {
  "account", "cpus_per_tres", "mem_per_tres", "partition", "qos", "req_nodes", "reservation",
  "tres_per_job", "tres_per_node", "tres_per_socket", "tres_per_task",
  "cpus_per_task", "max_cpus", "max_nodes", "min_cpus", "min_mem_per_cpu", "min_mem_per_node", "min_nodes",
  "ntasks_per_core", "ntasks_per_node", "ntasks_per_socket", "ntasks_per_tres", "num_tasks", "pn_min_cpus", "shared",
  "sockets_per_node", "cores_per_socket", "threads_per_core",
}

return M
