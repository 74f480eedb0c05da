/* Submits, allocates and cancels jobs of any user through libslurm, by root: sbatch takes 20 ms of a CPU for each.
 *
 * Commands come as lines on standard input, their words separated by tabs; each gets a line as its answer, the job's id
 * or "- " and why there is none:
 *   batch    UID  NAME  PARTITION  NODES  GPUS_PER_NODE  ARRAY or "-"
 *   allocate UID  NAME  PARTITION  NODES  GPUS_PER_NODE  -
 *   cancel   JOB
 * Slurm's release comes with its headers: the same text serves 22.05 to 26.05.
 */
#include <signal.h>
#include <slurm/slurm.h>
#include <slurm/slurm_errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define WORDS 7
#define MINUTES 600

static void refuse(void) { printf("- %s\n", slurm_strerror(slurm_get_errno())); }

static void fill(job_desc_msg_t *job, char **word)
{
	static char *environment[] = {"PATH=/usr/bin:/bin", NULL};
	static char script[] = "#!/bin/sh\nsleep 600\n", folder[] = "/tmp", output[] = "/dev/null", node[] = "n1";
	static char gpus[64];

	slurm_init_job_desc_msg(job);
	job->user_id = job->group_id = (uint32_t) strtoul(word[1], NULL, 10);
	job->name = word[2];
	job->partition = word[3];
	job->min_nodes = job->max_nodes = (uint32_t) strtoul(word[4], NULL, 10);
	job->num_tasks = job->min_nodes;
	job->time_limit = MINUTES;
	job->work_dir = folder;
	job->alloc_node = node;
	job->alloc_sid = (uint32_t) getpid();
	job->environment = environment;
	job->env_size = 1;
	if (strcmp(word[5], "0")) {
		snprintf(gpus, sizeof gpus, SLURM_VERSION_NUMBER < SLURM_VERSION_NUM(23, 11, 0) ? "gres:gpu:%s" : "gres/gpu:%s",
			 word[5]);
		job->tres_per_node = gpus;
	}
	if (!strcmp(word[0], "batch")) {
		job->script = script;
		job->std_out = job->std_err = output;
		if (strcmp(word[6], "-"))
			job->array_inx = word[6];
	}
}

static void batch(char **word)
{
	job_desc_msg_t job;
	submit_response_msg_t *answer = NULL;

	fill(&job, word);
	if (slurm_submit_batch_job(&job, &answer) || !answer)
		refuse();
	else
		printf("%u\n", answer->job_id);
	if (answer)
		slurm_free_submit_response_response_msg(answer);
}

static void allocate(char **word)
{
	job_desc_msg_t job;
	resource_allocation_response_msg_t *answer = NULL;

	fill(&job, word);
	if (slurm_allocate_resources(&job, &answer) || !answer)
		refuse();
	else
		printf("%u\n", answer->job_id);
	if (answer)
		slurm_free_resource_allocation_response_msg(answer);
}

int main(void)
{
	char line[1024];

	signal(SIGPIPE, SIG_IGN);
	slurm_init(NULL);
	setvbuf(stdout, NULL, _IOLBF, 0);
	while (fgets(line, sizeof line, stdin)) {
		char *word[WORDS] = {0}, *rest = line;
		int count = 0;

		line[strcspn(line, "\n")] = 0;
		while (count < WORDS && (word[count] = strsep(&rest, "\t")))
			count++;
		if (count == 2 && !strcmp(word[0], "cancel")) {
			if (slurm_kill_job((uint32_t) strtoul(word[1], NULL, 10), SIGKILL, 0))
				refuse();
			else
				printf("%s\n", word[1]);
		} else if (count == WORDS && !strcmp(word[0], "batch"))
			batch(word);
		else if (count == WORDS && !strcmp(word[0], "allocate"))
			allocate(word);
		else
			printf("- no such command\n");
	}
	return 0;
}
