-- job_submit.lua for a site without one of its own. A site that has one adds the lines marked 1 to 4 to it.
-- Belongs beside slurm.conf, which says JobSubmitPlugins=lua.

local gsub_ok, gsub_shim = pcall(function() return assert(dofile("/usr/libexec/gsub/gsub.lua"), "cut short") end) -- 1
if not gsub_ok then slurm.log_error("%s", "gsub is left out: " .. tostring(gsub_shim)) end -- 2

function slurm_job_submit(job_desc, part_list, submit_uid)
  -- A site's own rules go here, before gsub sees the job.
  return gsub_ok and gsub_shim.submit(job_desc, part_list, submit_uid) or slurm.SUCCESS -- 3
end

function slurm_job_modify(job_desc, job_rec, part_list, modify_uid)
  return gsub_ok and gsub_shim.modify(job_desc, job_rec, part_list, modify_uid) or slurm.SUCCESS -- 4
end

return slurm.SUCCESS
